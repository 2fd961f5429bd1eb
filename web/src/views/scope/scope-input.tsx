/** The scope as text, with carets under the characters that an error points at. */
import { useRef } from "preact/hooks";
import { ApiError } from "../../api";
import { t } from "../../i18n";

/** The error, if it points at characters of the scope. */
export const scopeError = (error: unknown) => (error instanceof ApiError && error.span ? error : null);

export function ScopeInput(props: { value: string; error: unknown; onInput: (text: string) => void }) {
  const carets = useRef<HTMLDivElement>(null);
  const error = scopeError(props.error);
  return (
    <div class="field scope-input">
      <label for="scope-text">{t("scope.text")}</label>
      <input
        id="scope-text"
        class="mono"
        value={props.value}
        maxLength={200}
        spellcheck={false}
        autocomplete="off"
        autocapitalize="off"
        aria-invalid={error ? "true" : undefined}
        aria-describedby="scope-error"
        onInput={(event) => props.onInput(event.currentTarget.value)}
        onScroll={(event) => carets.current && (carets.current.scrollLeft = event.currentTarget.scrollLeft)}
      />
      <div class="carets mono" ref={carets} aria-hidden="true">
        {error && <Carets text={props.value} span={error.span!} />}
      </div>
    </div>
  );
}

/** What the carets mean. Its space is always there, so that nothing moves while one types. */
export function ScopeMessage({ error }: { error: ApiError | null }) {
  return (
    <p id="scope-error" class="scope-error" role="status">
      {error && (
        <>
          <span class="bad">{error.message}</span> · {error.fix}
        </>
      )}
    </p>
  );
}

/** The text once more, invisible, with a caret under each character of the span: this fits characters of any width. */
function Carets({ text, span: [start, end] }: { text: string; span: [number, number] }) {
  const characters = Array.from(text); // the server counts code points
  const marked = characters.slice(start, Math.max(end, start + 1));
  return (
    <>
      <span class="unseen">{characters.slice(0, start).join("")}</span>
      {(marked.length ? marked : [" "]).map((character, i) => (
        <span key={i} class="caret">
          <span class="unseen">{character}</span>
        </span>
      ))}
    </>
  );
}
