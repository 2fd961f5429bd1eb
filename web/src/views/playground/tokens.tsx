/** A text as tokens. Arrow keys move between them; one token is in the tab order. */
import { useRef } from "preact/hooks";
import { t } from "../../i18n";
import { formatPercent } from "../../components/format";
import { visible, type Token } from "./types";

interface Props {
  label: string;
  tokens: readonly Token[];
  selected: number;
  onSelect: (index: number) => void;
  onHover?: (index: number | null) => void;
  /** How strongly a token is marked, from 0 to 1; null for none. */
  strength: (index: number) => number | null;
  /** Shown and read out with a token. */
  share: (index: number) => number | null;
  /** Class of a token. */
  kind?: (index: number) => string;
}

export function TokenText({ label, tokens, selected, onSelect, onHover, strength, share, kind }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -tokens.length, End: tokens.length };
    const by = steps[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = Math.min(tokens.length - 1, Math.max(0, selected + by));
    onSelect(next);
    box.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="tokens" role="group" aria-label={label} ref={box} onKeyDown={move} onPointerLeave={() => onHover?.(null)}>
      {tokens.map((token, i) => {
        const own = share(i), mark = strength(i);
        return (
          <>
            <button
              key={i}
              type="button"
              class={`token ${token.special ? "special" : ""} ${kind?.(i) ?? ""}`}
              style={mark === null ? undefined : { "--mark": `${Math.round(38 * mark)}%` }}
              tabIndex={i === selected ? 0 : -1}
              aria-pressed={i === selected}
              aria-label={own === null ? visible(token) : t("playground.token_share", { token: visible(token), share: formatPercent(own) })}
              onClick={() => onSelect(i)}
              onPointerEnter={() => onHover?.(i)}
            >
              {token.text === "\n" ? "↵" : token.text.replaceAll("\n", "↵")}
            </button>
            {token.text.includes("\n") && <br />}
          </>
        );
      })}
    </div>
  );
}
