/** A share from 0 to 1 as a bar, with its number. */
import "./bar.css";
import { formatPercent } from "./format";

export function Bar({ share, text = formatPercent(share), color }: { share: number; text?: string; color?: string }) {
  return (
    <span class="bar">
      <span class="track" aria-hidden="true">
        <span style={{ width: `${100 * share}%`, background: color && `var(${color})` }} />
      </span>
      <span class="number">{text}</span>
    </span>
  );
}
