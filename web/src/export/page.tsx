import type { Loaded } from "./load";
export function Page({ loaded }: { loaded: Loaded }) {
  return <h1>{loaded.payload.facts.name}</h1>;
}
