/** An error of the server: what is wrong, and how to fix it. */
import { ApiError } from "../api";

export function ErrorBox({ error }: { error: unknown }) {
  if (!error) return null;
  const message = error instanceof Error ? error.message : String(error);
  return (
    <div class="error" role="alert">
      <p>{message}</p>
      {error instanceof ApiError && error.fix && <p class="faint">{error.fix}</p>}
    </div>
  );
}
