/** The tab "Embedding": how text, and an image, become a batch of sequences of vectors (B, S, D). */
import { t } from "../../i18n";
import { ImageSection } from "./image";
import { TextSection } from "./text";
import "./embedding.css";

export default function EmbeddingView() {
  return (
    <div class="embedding-view">
      <div>
        <h1>{t("embedding.title")}</h1>
        <p class="faint">{t("embedding.intro")}</p>
      </div>
      <TextSection />
      <ImageSection />
    </div>
  );
}
