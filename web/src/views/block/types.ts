/** Answers of `normscope.studio.views.block`. */
export interface BlockOptions {
  presets: string[];
  runs: string[];
  wiring: Record<string, string>;
  norm: string[];
  activation: string[];
}

export interface Vector {
  size: number;
  mean: number;
  rms: number;
  min: number;
  max: number;
  values: number[];
}

export interface Part {
  name: string;
  kind: string;
  details: string;
  formula: string;
  code: string;
  parameters: Record<string, number[]>;
  input: Vector | null;
  output: Vector | null;
}

export interface BlockChanges {
  added: string[];
  removed: string[];
  changed: string[];
  parameters: [number, number];
}

export interface BlockAnswer {
  svg: string;
  formula: string;
  blocks: number;
  parameters: number;
  tokens: string[];
  parts: Part[];
  changes: BlockChanges | null;
}
