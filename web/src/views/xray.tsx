import { t } from "../i18n";

export default function XrayView() {
  return <h1>{t("xray.title")}</h1>;
}
