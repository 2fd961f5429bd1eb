import { t } from "../i18n";

export default function EmbeddingView() {
  return <h1>{t("embedding.title")}</h1>;
}
