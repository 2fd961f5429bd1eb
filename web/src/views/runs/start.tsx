/** The form that starts a run: on the built-in stories, or on a text that is uploaded. */
import { useComputed, useSignal } from "@preact/signals";
import { ApiError, call, upload } from "../../api";
import { ErrorBox } from "../../components/error-box";
import { formatBytes, formatCount } from "../../components/format";
import { useAction } from "../../components/use-action";
import { useResult } from "../../components/use-result";
import { t, type MessageKey } from "../../i18n";
import { fieldName, withFieldNames, type Field } from "./field-names";

interface Options {
  recipes: { name: string; depth: number }[];
  presets: string[];
  tokenizers: string[];
  max_upload: number;
}
interface Plan {
  preset: string;
  tokenizer: string;
  depth: number;
  width: number;
  heads: number;
  context: number;
  parameters: number;
  vocab_size: number;
  steps: number;
  batch: number;
  lr: number;
  matrix_lr: number;
}
interface Upload {
  name: string;
  bytes: number;
  characters: number;
  preview: string;
}

/** Settings that are numbers; an empty field leaves them to the recipe. */
const NUMBERS = ["steps", "batch", "micro_batch", "context", "lr", "matrix_lr", "seed"] as const;
const RATES: readonly Field[] = ["lr", "matrix_lr"];
/** The limits of `normscope.studio.views.runs`, which the browser explains before anything is sent. */
const SMALLEST: Partial<Record<Field, number>> = { seed: 0, vocab_size: 257 };
const LARGEST: Partial<Record<Field, number>> = { depth: 4096, vocab_size: 1e6, lr: 1000, matrix_lr: 1000, seed: 2 ** 53 - 1 };

export function StartForm({ names, onStart }: { names: string[]; onStart: (name: string) => void }) {
  const options = useResult<Options>("runs/options", useSignal({})).value;
  const values = useSignal<Record<string, string>>({ recipe: "dial" });
  const text = useSignal<(Upload & { file: string }) | null>(null);
  const action = useAction();
  const number = (name: string) => (values.value[name] ? Number(values.value[name]) : null);
  const settings = useComputed(() => ({
    recipe: values.value.recipe,
    depth: number("depth"),
    preset: values.value.preset || null,
    tokenizer: values.value.tokenizer || null,
    vocab_size: takesVocabSize(values.value.tokenizer) ? number("vocab_size") : null,
  }));
  // While a number is being typed, the plan of before stays.
  const request = useComputed(() => (isAllowed("depth", settings.value.depth) && isAllowed("vocab_size", settings.value.vocab_size) ? settings.value : null));
  const plan = useResult<Plan>("runs/plan", request, 150).value;
  const set = (name: string) => (event: { currentTarget: { value: string } }) => (values.value = { ...values.value, [name]: event.currentTarget.value });
  const suggested = freeName(text.value?.file ?? "stories", names);

  const choose = (file: File | undefined) =>
    action.run(async () => {
      text.value = null;
      if (!file) return;
      const limit = options.data!.max_upload;
      if (file.size > limit) throw new ApiError(t("runs.too_large", { size: formatBytes(file.size), limit: formatBytes(limit) }));
      text.value = { ...(await upload<Upload>("runs/upload", file)), file: file.name };
    });
  const start = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const name = values.value.name || suggested;
      const numbers = Object.fromEntries(NUMBERS.map((field) => [field, number(field)]));
      await call("runs/start", { ...settings.value, ...numbers, name, text: text.value?.name ?? null, prompt: values.value.prompt ?? "" });
      values.value = { ...values.value, name: "" };
      onStart(name);
    });
  };
  const tokenizerName = (kind: string) => t(`runs.tokenizer.${kind}` as MessageKey);
  const placeholder = (name: (typeof NUMBERS)[number]) =>
    name === "seed" ? 0 : name === "micro_batch" ? t("runs.like_batch") : plan.data?.[name];

  return (
    <details class="panel start">
      <summary><h2>{t("runs.new")}</h2></summary>
      <form onSubmit={start}>
        <div class="row">
          <label class="field">
            {t("runs.text")}
            <input type="file" accept=".txt,.md,text/plain" disabled={!options.data || action.busy} onChange={(event) => void choose(event.currentTarget.files?.[0])} />
          </label>
          <p class="faint source">
            {text.value
              ? t("runs.uploaded", { characters: formatCount(text.value.characters), bytes: formatBytes(text.value.bytes) })
              : t("runs.stories", { limit: formatBytes(options.data?.max_upload ?? 0) })}
          </p>
        </div>
        {text.value && <pre class="box preview" tabIndex={0}>{text.value.preview}</pre>}
        <div class="fields">
          <Text name="name" value={values.value.name} placeholder={suggested} set={set} pattern="[A-Za-z0-9][A-Za-z0-9_\-]{0,39}" />
          <label class="field">
            {fieldName("recipe")}
            <select value={values.value.recipe} onChange={set("recipe")}>
              {options.data?.recipes.map(({ name }) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <Text name="depth" value={values.value.depth} placeholder={plan.data?.depth} set={set} number />
          <label class="field">
            {fieldName("preset")}
            <select value={values.value.preset ?? ""} onChange={set("preset")}>
              <option value="">{t("runs.from_recipe", { value: plan.data?.preset ?? "" })}</option>
              {options.data?.presets.map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <label class="field">
            {fieldName("tokenizer")}
            <select value={values.value.tokenizer ?? ""} onChange={set("tokenizer")}>
              <option value="">{t("runs.from_recipe", { value: plan.data && !values.value.tokenizer ? tokenizerName(plan.data.tokenizer) : "…" })}</option>
              {options.data?.tokenizers.map((kind) => <option key={kind} value={kind}>{tokenizerName(kind)}</option>)}
            </select>
          </label>
          {takesVocabSize(values.value.tokenizer) && (
            <Text name="vocab_size" value={values.value.vocab_size} set={set} number
              placeholder={plan.data?.tokenizer === "bpe" ? plan.data.vocab_size : t("runs.by_text")} />
          )}
          {NUMBERS.map((name) => <Text key={name} name={name} value={values.value[name]} set={set} number placeholder={placeholder(name)} />)}
          <Text name="prompt" value={values.value.prompt} set={set} placeholder="" />
        </div>
        <p class="faint plan">
          {plan.data && t("runs.plan", { depth: plan.data.depth, width: plan.data.width, heads: plan.data.heads, parameters: formatCount(plan.data.parameters), vocabulary: plan.data.vocab_size })}
        </p>
        <button class="primary" disabled={action.busy || !options.data}>{t("runs.start")}</button>
        <ErrorBox error={action.error ?? options.error ?? plan.error} retry={action.retry} words={withFieldNames} />
      </form>
    </details>
  );
}

/** A tokenizer that is trained, or may be. */
const takesVocabSize = (tokenizer: string | undefined) => !tokenizer || tokenizer === "auto" || tokenizer === "bpe";

const isAllowed = (field: Field, value: number | null) =>
  value === null || (Number.isInteger(value) && value >= (SMALLEST[field] ?? 1) && value <= (LARGEST[field] ?? Infinity));

interface TextProps {
  name: Field;
  value: string | undefined;
  placeholder: string | number | undefined;
  set: (name: string) => (event: { currentTarget: { value: string } }) => void;
  number?: boolean;
  pattern?: string;
}

function Text({ name, value = "", placeholder = "", set, number, pattern }: TextProps) {
  const whole = !RATES.includes(name);
  const shared = { value, placeholder: String(placeholder), onInput: set(name) };
  return (
    <label class="field">
      {fieldName(name)}
      {number ? (
        <input type="number" step={whole ? 1 : "any"} min={SMALLEST[name] ?? (whole ? 1 : 0)} max={LARGEST[name] ?? 1e7} {...shared} />
      ) : (
        <input type="text" pattern={pattern} title={pattern && t("runs.field.name.allowed")} {...shared} />
      )}
    </label>
  );
}

/** A name after the file that is not taken: stories, stories-2, ... */
function freeName(file: string, names: string[]): string {
  const stem = file.replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^[-_]+|-+$/g, "").slice(0, 32) || "text";
  for (let number = 1; ; number++) {
    const name = number === 1 ? stem : `${stem}-${number}`;
    if (!names.includes(name)) return name;
  }
}
