/** Text becomes tokens, ids, rows of the table, and a batch (B, S, D) with padding and mask. */
import { useComputed, useSignal, type Signal } from "@preact/signals";
import { Choice } from "../../components/choice";
import { ErrorBox } from "../../components/error-box";
import { visible } from "../../components/tokens";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { TokenGrid } from "./token-grid";
import type { Place, TextBatch, Tokenizers } from "./types";
import { VectorTable } from "./vector-table";

export function TextSection() {
  const text = useSignal(t("embedding.example"));
  const tokenizer = useSignal("characters");
  const offer = useResult<Tokenizers>("embedding/tokenizers", useSignal({})).value;
  const request = useComputed(() => {
    const [kind, run] = tokenizer.value.split(/:(.*)/s);
    return { text: text.value, tokenizer: kind, run: run ?? "" };
  });
  const { data, error } = useResult<TextBatch>("embedding/text", request, 120).value;
  return (
    <section class="panel" aria-labelledby="text-heading">
      <h2 id="text-heading">{t("embedding.text")}</h2>
      <div class="row text-input">
        <label class="field">
          {t("embedding.lines")}
          <textarea
            rows={4}
            maxLength={1000}
            value={text.value}
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
        </label>
        <label class="field">
          {t("embedding.tokenizer")}
          <select value={tokenizer.value} onChange={(event) => (tokenizer.value = event.currentTarget.value)}>
            <option value="characters">{t("embedding.tokenizer.characters")}</option>
            <option value="bytes">{t("embedding.tokenizer.bytes")}</option>
            {offer.data?.runs.map((run) => (
              <option key={run} value={`run:${run}`}>
                {t("embedding.tokenizer.run", { run })}
              </option>
            ))}
          </select>
        </label>
      </div>
      <ErrorBox error={error} />
      {data ? <Batch batch={data} isNew={!tokenizer.value.startsWith("run:")} /> : <p class="loading">{t("shell.loading")}</p>}
    </section>
  );
}

type Light = "token" | "feature";

function Batch({ batch, isNew }: { batch: TextBatch; isNew: boolean }) {
  const chosen = useSignal<Place>({ b: 0, s: 0, d: 0 });
  const light = useSignal<Light>("token");
  const [sequences, length] = [batch.ids.length, batch.ids[0]!.length];
  const at: Place = {
    b: Math.min(chosen.value.b, sequences - 1),
    s: Math.min(chosen.value.s, length - 1),
    d: Math.min(chosen.value.d, batch.x[0]![0]!.length - 1),
  };
  const move = (changes: Partial<Place>) => (chosen.value = { ...at, ...changes });
  const id = batch.ids[at.b]![at.s]!;
  const previous = (i: number) => (i ? batch.rows[i - 1]!.id : -1);
  return (
    <>
      <h3>{t("embedding.ids")}</h3>
      <p class="faint">{t("embedding.ids.intro", { pad: batch.pad })}</p>
      <TokenGrid batch={batch} at={at} onMove={move} />
      <h3>{t("embedding.table")}</h3>
      <p class="faint">
        {t("embedding.table.intro", { vocab: batch.vocab_size, width: batch.width })}{" "}
        {t(isNew ? "embedding.table.new" : "embedding.table.run")}
      </p>
      <div class="scroll tall" role="region" aria-label={t("embedding.table")} tabIndex={0}>
        <VectorTable
          caption={`weight (${batch.vocab_size}, ${batch.width})`}
          width={batch.width}
          rows={batch.rows.map((row, i) => ({
            key: row.id,
            heading: (
              <>
                {row.id} <b>{visible({ text: row.token })}</b>
              </>
            ),
            vector: row.vector,
            gap: row.id > previous(i) + 1,
          }))}
          isLit={(row) => batch.rows[row]!.id === id}
        />
      </div>
      <h3>
        {t("embedding.batch")} <span class="mono">({batch.shape.join(", ")})</span>
      </h3>
      <Lights batch={batch} light={light} at={at} onMove={move} />
      <div class="scroll batch" role="region" aria-label={t("embedding.batch")} tabIndex={0}>
        {batch.x.map((sequence, b) => (
          <VectorTable
            key={b}
            caption={`b=${b}`}
            width={batch.width}
            rows={sequence.map((vector, s) => ({
              key: s,
              heading: batch.mask[b]![s] ? visible({ text: batch.tokens[b]![s]! }) : t("embedding.pad"),
              vector,
              padding: !batch.mask[b]![s],
            }))}
            isLit={(s, d) => (light.value === "token" ? b === at.b && s === at.s : d === at.d)}
            onPoint={(s, d) => move({ b, s, d })}
          />
        ))}
      </div>
    </>
  );
}

/** Which values are lit up: those that LayerNorm normalizes together, or those of BatchNorm. */
function Lights(props: { batch: TextBatch; light: Signal<Light>; at: Place; onMove: (changes: Partial<Place>) => void }) {
  const { batch, light, at } = props;
  const positions = batch.mask.flat();
  return (
    <div class="row lights">
      <Choice
        label={t("embedding.light")}
        value={light.value}
        options={(["token", "feature"] as const).map((value) => ({ value, label: t(`embedding.light.${value}`) }))}
        onChange={(value) => (light.value = value)}
      />
      <label class="field">
        <span>
          {t("embedding.feature")} <span class="mono">d={at.d}</span>
        </span>
        <input
          type="range"
          min={0}
          max={batch.x[0]![0]!.length - 1}
          value={at.d}
          disabled={light.value === "token"}
          onInput={(event) => props.onMove({ d: event.currentTarget.valueAsNumber })}
        />
      </label>
      <p class="light-note">
        {light.value === "token"
          ? t("embedding.light.token.note", { count: batch.width })
          : t("embedding.light.feature.note", {
              count: positions.length,
              padding: positions.filter((isReal) => !isReal).length,
            })}{" "}
        <a href="#scope">{t("tab.scope")}</a>
      </p>
    </div>
  );
}
