/** Ask the server whenever the request changes; a newer request cancels an older one. */
import { useSignal, useSignalEffect, type ReadonlySignal } from "@preact/signals";
import { call } from "../api";

export interface Result<T> {
  /** The last good answer, kept while a new one is on its way, so that nothing jumps. */
  data: T | null;
  error: unknown;
  loading: boolean;
}

export function useResult<T>(name: string, request: ReadonlySignal<unknown>, delay = 0): ReadonlySignal<Result<T>> {
  const result = useSignal<Result<T>>({ data: null, error: null, loading: true });
  useSignalEffect(() => {
    const asked = request.value;
    if (asked === null) return undefined; // nothing to ask yet
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      result.value = { ...result.peek(), loading: true };
      try {
        result.value = { data: await call<T>(name, asked, abort.signal), error: null, loading: false };
      } catch (error) {
        if (!abort.signal.aborted) result.value = { ...result.peek(), error, loading: false };
      }
    }, delay);
    return () => (clearTimeout(timer), abort.abort());
  });
  return result;
}
