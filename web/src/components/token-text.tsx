/** A text as its tokens. One stop for Tab; the arrow keys move between tokens. */
import "./model-parts.css";
import { useRef } from "preact/hooks";
import { t } from "../i18n";
import { formatPercent } from "./format";
import { visible, type TextToken } from "./tokens";

interface Props {
  label: string;
  tokens: readonly TextToken[];
  selected: number | null;
  onSelect: (index: number) => void;
  onHover: (index: number | null) => void;
  /** Color the tokens by these weights from 0 to 1, instead of by how surprising the generated ones were. */
  weights?: ArrayLike<number>;
}

export function TokenText({ label, tokens, selected, onSelect, onHover, weights }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const last = tokens.length - 1;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -last, End: last };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max((selected ?? 0) + step, 0), last);
    onSelect(next);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  };
  if (tokens.length === 0) return null;
  return (
    <div
      class={weights ? "token-text weighted" : "token-text"}
      role="listbox"
      aria-label={label}
      aria-orientation="horizontal"
      ref={list}
      onKeyDown={move}
      onPointerLeave={() => onHover(null)}
    >
      {tokens.map((token, i) => {
        const share = weights ? (weights[i] ?? 0) : token.probability;
        const described = share === undefined ? visible(token) : t("model.token.share", { token: visible(token), share: formatPercent(share) });
        const shown = token.shown ?? token.text;
        return (
          <span
            key={i}
            role="option"
            aria-selected={i === selected}
            aria-label={described}
            title={described}
            tabIndex={i === (selected ?? 0) ? 0 : -1}
            class={`${token.generated ? "generated" : ""} ${shown === "" ? "part" : ""}`}
            style={{ "--mark": weights ? Math.sqrt(share!) : surprise(share) }}
            onClick={() => onSelect(i)}
            onPointerEnter={() => onHover(i)}
          >
            {shown.split(/(?=\n)/).map((line) => (line.startsWith("\n") ? [<i class="break" />, line] : line))}
          </span>
        );
      })}
    </div>
  );
}

/** How surprising a token was, from 0 to 1 for eight bits and more. */
const surprise = (share: number | undefined) => (share === undefined ? 0 : Math.min(1, -Math.log2(share) / 8));
