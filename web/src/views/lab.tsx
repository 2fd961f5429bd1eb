import { t } from "../i18n";

export default function LabView() {
  return <h1>{t("lab.title")}</h1>;
}
