/** What the endpoints of `studio/views/scope.py` take and return. Tensors are flat lists in row-major order. */

export type LayoutName = "image" | "text";
export type NormName = "batch" | "layer" | "instance" | "group" | "rms" | "power";

export interface Offer {
  norms: { name: NormName; title: string }[];
  layouts: Record<LayoutName, { axes: string[]; feature: number; shape: number[]; scopes: Record<NormName, string> }>;
  max_size: number;
  max_values: number;
}

/** The request of `scope/work`. */
export interface Settings {
  layout: LayoutName;
  shape: number[];
  /** A named norm; null for the one that `scope` and `statistic` describe. */
  norm: NormName | null;
  scope: string;
  statistic: "standardize" | "rms";
  sizes: Record<string, number>;
  edits: Record<number, number>;
  weight: Record<number, number>;
  bias: Record<number, number>;
  padding: boolean;
  masked: boolean;
  pad_value: number;
  earlier_batches: number;
}

export interface Split {
  name: string;
  size: number;
  sizes: number[];
  same_as: string[][];
}

interface GroupStatistics {
  mean: number[] | null;
  moment: number[];
  counts: number[];
}

export interface Worked {
  scope: string;
  axes: string[];
  shape: number[];
  reads: string[];
  layer: string;
  formula: string;
  centers: boolean;
  eps: number;
  count: number;
  /** The statistic that each value belongs to, and the names of the statistics. */
  groups: number[];
  group_names: string[];
  /** The entry of weight and bias that each value uses. */
  parameters: number[] | null;
  weight: number[] | null;
  bias: number[] | null;
  mask: boolean[] | null;
  x: number[];
  normalized: number[];
  result: number[];
  mean: number[] | null;
  moment: number[];
  counts: number[];
  running: number[] | null;
  next_running: number[] | null;
  torch: {
    code: string;
    normalized: number[];
    result: number[];
    mean: number[] | null;
    moment: number[];
    difference: number;
  };
  same_as: string[];
  splits: Split[];
  padding: { real: GroupStatistics; padded: GroupStatistics; wrong: boolean[]; has_real: boolean[] } | null;
}

export interface LayoutExample {
  axes: string[];
  shape: number[];
  feature: number;
  scope: string;
  values: number[];
  groups: number[];
  group_count: number;
  count: number;
  /** The index of each value in the images. */
  same: number[];
}

export interface SideBySide {
  image: LayoutExample;
  text: LayoutExample;
  code: string;
}
