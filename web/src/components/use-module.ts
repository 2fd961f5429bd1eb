/** Load a part of the page when it is first shown; if that fails, once more when the server answers again. */
import { useSignal, type ReadonlySignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { connected, reconnections } from "../api";

export interface Loaded<Module> {
  module: Module | null;
  /** Why it did not load, although the server answers. */
  error: unknown;
}

export function useModule<Module>(load: () => Promise<Module>): ReadonlySignal<Loaded<Module>> {
  const loaded = useSignal<Loaded<Module>>({ module: null, error: null });
  const failed = useSignal(false);
  useEffect(() => {
    if (loaded.value.module) return;
    load().then(
      (module) => (loaded.value = { module, error: null }),
      (error) => {
        if (failed.value && connected.value) loaded.value = { module: null, error };
        else connected.value = false; // the connection may be lost: asks the server until it answers
        failed.value = true;
      },
    );
  }, [reconnections.value]);
  return loaded;
}
