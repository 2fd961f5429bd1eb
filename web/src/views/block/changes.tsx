/** What the chosen settings change in the preset's block. */
import { formatInteger, t } from "../../i18n";
import type { BlockChanges } from "./types";

export function Changes({ changes }: { changes: BlockChanges }) {
  const [before, after] = changes.parameters;
  const lists = (["added", "removed", "changed"] as const).filter((kind) => changes[kind].length > 0);
  return (
    <div class="panel changes" role="status">
      <h2>{t("block.changes")}</h2>
      <ul>
        {lists.map((kind) => (
          <li key={kind}>
            {t(`block.${kind}`)}: <code>{changes[kind].join(", ")}</code>
          </li>
        ))}
        <li>
          {before === after
            ? t("block.sameParameters", { count: formatInteger(after) })
            : t("block.parameters", { before: formatInteger(before), after: formatInteger(after) })}
        </li>
      </ul>
    </div>
  );
}
