/** The names of settings in messages of the library, such as `--depth`, as the fields of the form are called. */
import { t, type MessageKey } from "../../i18n";

export const FIELDS = [
  "name", "recipe", "depth", "preset", "tokenizer", "vocab_size", "steps", "batch", "micro_batch", "context", "lr", "matrix_lr", "seed", "prompt",
] as const;
export type Field = (typeof FIELDS)[number];

export const fieldName = (field: Field) => t(`runs.field.${field}` as MessageKey);

const isField = (name: string): name is Field => FIELDS.includes(name as Field);

/** "lower --depth" becomes "lower “Depth”"; a flag without a field becomes plain words. */
export function withFieldNames(message: string): string {
  const quoted = (field: Field) => `“${fieldName(field)}”`;
  return message
    .replace(/(?<![\w-])--([a-z]+(?:-[a-z]+)*)/g, (_, flag: string) => {
      const name = flag.replaceAll("-", "_");
      return isField(name) ? quoted(name) : flag.replaceAll("-", " ");
    })
    .replace(/\b([a-z_]+)=/g, (whole, name: string) => (isField(name) ? `${quoted(name)} ` : whole))
    .replace(/^(.*?) - at `\$\.(\w+)`$/, (whole, problem: string, name: string) => (isField(name) ? `${quoted(name)}: ${problem}` : whole));
}

/** The error that a process printed last, in the words of the form; null if it printed none. */
export function printedError(output: string): { message: string; fix: string } | null {
  const found = [...output.matchAll(/^error: (.*)(?:\n(?:fix: (.*))?)?/gm)].at(-1);
  return found ? { message: withFieldNames(found[1]!), fix: withFieldNames(found[2] ?? "") } : null;
}
