/** Something that the user asked for, such as starting a run: whether it is under way, its error, and how to try again. */
import { useSignal } from "@preact/signals";
import { ConnectionError } from "../api";

export function useAction() {
  const busy = useSignal(false);
  const error = useSignal<unknown>(null);
  const retry = useSignal<(() => void) | undefined>(undefined);
  const run = async (action: () => Promise<void>) => {
    busy.value = true;
    error.value = null;
    try {
      await action();
    } catch (problem) {
      error.value = problem;
      // Never by itself: it may have reached the server, and may no longer be wanted.
      retry.value = problem instanceof ConnectionError ? () => void run(action) : undefined;
    } finally {
      busy.value = false;
    }
  };
  return { run, busy: busy.value, error: error.value, retry: retry.value };
}
