/** An error of the server: what is wrong, and how to fix it; or that the server did not answer, with a button to try again. */
import { ApiError, ConnectionError } from "../api";
import { t } from "../i18n";

export function ErrorBox({ error, retry, words = (text) => text }: { error: unknown; retry?: () => void; words?: (text: string) => string }) {
  if (!error) return null;
  const lost = error instanceof ConnectionError;
  const message = error instanceof Error ? error.message : String(error);
  return (
    <div class="error" role="alert">
      <p>{lost ? t("shell.unreachable") : words(message)}</p>
      {error instanceof ApiError && error.fix && <p class="faint">{words(error.fix)}</p>}
      {lost && retry && (
        <button type="button" onClick={retry}>
          {t("shell.retry")}
        </button>
      )}
    </div>
  );
}
