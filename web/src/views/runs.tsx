import { t } from "../i18n";

export default function RunsView() {
  return <h1>{t("runs.title")}</h1>;
}
