import { t } from "../i18n";

export default function BlockView() {
  return <h1>{t("block.title")}</h1>;
}
