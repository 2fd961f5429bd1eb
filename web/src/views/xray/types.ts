/** Answers of `normscope.studio.views.xray`. */
export interface Finding {
  name: string;
  severity: "error" | "warning" | "note";
  module: string;
  title: string;
  evidence: Record<string, number | string | null>;
  why: string;
  fix: string;
}

export interface ModuleSignal {
  name: string;
  kind: string;
  rms: number | null;
  gradient_rms: number | null;
}

export interface Xray {
  key: string;
  label: string;
  model: string;
  findings: Finding[];
  modules: ModuleSignal[];
}

export interface Divergence {
  module: string;
  distance: number | null;
  why: string;
}

export type Distance = number | "different" | null;

export interface XrayDiff {
  labels: [string, string];
  tolerance: number;
  forward: Divergence | null;
  backward: Divergence | null;
  remarks: string[];
  modules: { name: string; kind: string; only_in: number | null; output: Distance; gradient: Distance; weights: Distance }[];
}
