/** Ask the server whenever the request changes; a newer request cancels an older one. */
import { useSignal, useSignalEffect, type ReadonlySignal } from "@preact/signals";
import { call, ConnectionError, reconnections } from "../api";

export interface Result<T> {
  /** The last good answer, kept while a new one is on its way, so that nothing jumps. */
  data: T | null;
  /** The request that the data answers. */
  answered: unknown;
  error: unknown;
  loading: boolean;
}

export function useResult<T>(name: string, request: ReadonlySignal<unknown>, delay = 0): ReadonlySignal<Result<T>> {
  const result = useSignal<Result<T>>({ data: null, answered: null, error: null, loading: true });
  const retries = useSignal(0);
  useSignalEffect(() => {
    const { error } = result.peek();
    // Only what did not reach the server: an error that the server explains would come again.
    if (reconnections.value > 0 && error instanceof ConnectionError) retries.value = reconnections.peek();
  });
  useSignalEffect(() => {
    const asked = request.value;
    void retries.value; // asks again when it changes
    if (asked === null) return undefined; // nothing to ask yet
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      result.value = { ...result.peek(), loading: true };
      try {
        result.value = { data: await call<T>(name, asked, abort.signal), answered: asked, error: null, loading: false };
      } catch (error) {
        if (!abort.signal.aborted) result.value = { ...result.peek(), error, loading: false };
      }
    }, delay);
    return () => (clearTimeout(timer), abort.abort());
  });
  return result;
}
