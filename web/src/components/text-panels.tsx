/** The text, and the alternatives to the token that is pointed at or selected. */
import "./model-parts.css";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { t } from "../i18n";
import { AlternativesPanel } from "./alternatives";
import { TokenText } from "./token-text";
import type { TextToken } from "./tokens";

interface Props {
  tokens: readonly TextToken[];
  selected: number | null;
  onSelect: (index: number) => void;
  running?: boolean;
  /** Below the text: errors, and how it ended. */
  children?: ComponentChildren;
}

export function TextPanels({ tokens, selected, onSelect, running, children }: Props) {
  const hovered = useSignal<number | null>(null);
  const shown = hovered.value ?? selected;
  return (
    <>
      <section class="panel text" aria-busy={running}>
        <h2>{t("model.text")}</h2>
        <p class="faint legend">{t("model.text.hint")}</p>
        <div class="box">
          {tokens.length === 0 && <p class="faint">{t("model.text.empty")}</p>}
          <TokenText label={t("model.text")} {...{ tokens, selected, onSelect }} onHover={(index) => (hovered.value = index)} />
        </div>
        {children}
      </section>
      <AlternativesPanel token={shown === null ? undefined : tokens[shown]} />
    </>
  );
}
