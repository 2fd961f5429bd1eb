import { t } from "../i18n";

export default function PlaygroundView() {
  return <h1>{t("playground.title")}</h1>;
}
