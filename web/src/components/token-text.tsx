/** A text as its tokens, colored by their probability. One stop for Tab; the arrow keys move between tokens. */
import "./model-parts.css";
import { useRef } from "preact/hooks";
import { t } from "../i18n";
import { formatProbability, visible } from "./token-label";

export interface TextToken {
  /** The text that is complete with this token; empty if a character goes on. */
  text: string;
  /** The token on its own, as in lists. */
  label: string;
  /** The probability that the model gave it; null where nothing was predicted. */
  probability: number | null;
  generated: boolean;
}

interface Props {
  tokens: TextToken[];
  selected: number | null;
  onSelect: (index: number) => void;
  label: string;
}

export function TokenText({ tokens, selected, onSelect, label }: Props) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const last = tokens.length - 1;
    const current = selected ?? 0;
    const targets: Record<string, number> = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: last };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(target, 0), last);
    onSelect(next);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="token-text" role="listbox" aria-label={label} aria-orientation="horizontal" ref={list} onKeyDown={move}>
      {tokens.map((token, index) => (
        <span
          key={index}
          role="option"
          aria-selected={index === selected}
          aria-label={describe(token)}
          tabIndex={index === (selected ?? 0) ? 0 : -1}
          class={`${token.generated ? "generated" : ""} ${token.text === "" ? "part" : ""}`}
          style={{ "--p": token.probability ?? 0 }}
          title={describe(token)}
          onClick={() => onSelect(index)}
        >
          {token.text}
        </span>
      ))}
    </div>
  );
}

function describe(token: TextToken): string {
  const shown = visible(token.text || token.label);
  return token.probability === null ? shown : t("model.token", { token: shown, probability: formatProbability(token.probability) });
}
