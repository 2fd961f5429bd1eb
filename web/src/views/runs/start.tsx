/** The form that starts a run: on the built-in stories, or on a text that is uploaded. */
import { useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ApiError, call, upload } from "../../api";
import { ErrorBox } from "../../components/error-box";
import { formatBytes, formatCount } from "../../components/format";
import { useResult } from "../../components/use-result";
import { t, type MessageKey } from "../../i18n";

interface Options {
  recipes: { name: string; depth: number }[];
  presets: string[];
  max_upload: number;
}
interface Plan {
  preset: string;
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
const NUMBERS = ["steps", "batch", "context", "lr", "matrix_lr", "seed"] as const;

export function StartForm({ names, onStart }: { names: string[]; onStart: (name: string) => void }) {
  const options = useSignal<Options | null>(null);
  const values = useSignal<Record<string, string>>({ recipe: "dial" });
  const text = useSignal<(Upload & { file: string }) | null>(null);
  const error = useSignal<unknown>(null);
  const busy = useSignal(false);
  useEffect(() => void call<Options>("runs/options").then((found) => (options.value = found), (problem) => (error.value = problem)), []);
  const number = (name: string) => (values.value[name] ? Number(values.value[name]) : null);
  const request = useComputed(() => ({ recipe: values.value.recipe, depth: number("depth"), preset: values.value.preset || null }));
  const plan = useResult<Plan>("runs/plan", request, 150).value;
  const set = (name: string) => (event: { currentTarget: { value: string } }) => (values.value = { ...values.value, [name]: event.currentTarget.value });
  const suggested = freeName(text.value?.file ?? "stories", names);

  const choose = async (file: File | undefined) => {
    error.value = null;
    text.value = null;
    if (!file) return;
    busy.value = true;
    try {
      const limit = options.value!.max_upload;
      if (file.size > limit) throw new ApiError(t("runs.too_large", { size: formatBytes(file.size), limit: formatBytes(limit) }));
      text.value = { ...(await upload<Upload>("runs/upload", file)), file: file.name };
    } catch (problem) {
      error.value = problem;
    }
    busy.value = false;
  };
  const start = async (event: Event) => {
    event.preventDefault();
    busy.value = true;
    try {
      error.value = null;
      const name = values.value.name || suggested;
      const settings = Object.fromEntries(NUMBERS.map((field) => [field, number(field)]));
      await call("runs/start", { ...request.value, ...settings, name, text: text.value?.name ?? null, prompt: values.value.prompt ?? "" });
      values.value = { ...values.value, name: "" };
      onStart(name);
    } catch (problem) {
      error.value = problem;
    }
    busy.value = false;
  };

  return (
    <details class="panel start">
      <summary><h2>{t("runs.new")}</h2></summary>
      <form onSubmit={start}>
        <div class="row">
          <label class="field">
            {t("runs.text")}
            <input type="file" accept=".txt,.md,text/plain" disabled={!options.value || busy.value} onChange={(event) => void choose(event.currentTarget.files?.[0])} />
          </label>
          <p class="faint source">
            {text.value
              ? t("runs.uploaded", { characters: formatCount(text.value.characters), bytes: formatBytes(text.value.bytes) })
              : t("runs.stories", { limit: formatBytes(options.value?.max_upload ?? 0) })}
          </p>
        </div>
        {text.value && <pre class="box preview" tabIndex={0}>{text.value.preview}</pre>}
        <div class="fields">
          <Text name="name" value={values.value.name} placeholder={suggested} set={set} pattern="[A-Za-z0-9][A-Za-z0-9_\-]*" />
          <label class="field">
            {t("runs.field.recipe")}
            <select value={values.value.recipe} onChange={set("recipe")}>
              {options.value?.recipes.map(({ name }) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <Text name="depth" value={values.value.depth} placeholder={plan.data?.depth} set={set} number />
          <label class="field">
            {t("runs.field.preset")}
            <select value={values.value.preset ?? ""} onChange={set("preset")}>
              <option value="">{t("runs.from_recipe", { preset: plan.data?.preset ?? "" })}</option>
              {options.value?.presets.map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          {NUMBERS.map((name) => (
            <Text key={name} name={name} value={values.value[name]} set={set} number
              placeholder={name === "seed" ? 0 : plan.data?.[name]} />
          ))}
          <Text name="prompt" value={values.value.prompt} set={set} placeholder="" />
        </div>
        <p class="faint plan">
          {plan.data && t("runs.plan", { depth: plan.data.depth, width: plan.data.width, heads: plan.data.heads, parameters: formatCount(plan.data.parameters), vocabulary: plan.data.vocab_size })}
        </p>
        <button class="primary" disabled={busy.value || !options.value}>{t("runs.start")}</button>
        <ErrorBox error={error.value ?? plan.error} />
      </form>
    </details>
  );
}

interface TextProps {
  name: string;
  value: string | undefined;
  placeholder: string | number | undefined;
  set: (name: string) => (event: { currentTarget: { value: string } }) => void;
  number?: boolean;
  pattern?: string;
}

function Text({ name, value = "", placeholder = "", set, number, pattern }: TextProps) {
  const shared = { value, placeholder: String(placeholder), onInput: set(name) };
  return (
    <label class="field">
      {t(`runs.field.${name}` as MessageKey)}
      {number ? <input type="number" step="any" {...shared} /> : <input type="text" pattern={pattern} {...shared} />}
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
