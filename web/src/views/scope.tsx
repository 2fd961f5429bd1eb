import { t } from "../i18n";

export default function ScopeView() {
  return <h1>{t("scope.title")}</h1>;
}
