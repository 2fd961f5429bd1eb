/** The answers of normscope.studio.views.runs. */
export interface Job {
  number: number;
  name: string;
  status: "running" | "done" | "stopped" | "failed";
  stopping: boolean;
  output: string;
}

export interface RunSummary {
  name: string;
  status: "done" | "training" | "stopped";
  depth: number;
  width: number;
  parameters: number;
  step: number | null;
  steps: number;
  best_loss: number | null;
  bytes: number;
  modified: string;
  job: Job | null;
}

export interface RunList {
  runs: RunSummary[];
  damaged: { name: string; message: string; fix: string }[];
  starting: Job[];
}

export interface RunDetails {
  model: string;
  parameters: number;
  train: { steps: number; batch: number };
  prompt: string;
  extension: string | null;
}

export interface Layer {
  name: string;
  rms: number | null;
  grad_rms: number | null;
}

/** An event of metrics.jsonl; a field that was NaN is null. */
export type RunEvent =
  | { kind: "started"; step: number; steps: number; batch_tokens: number; floor: number | null; floor_nats: number | null }
  | { kind: "step"; step: number; loss: number | null; grad_norm: number | null; lr_scale: number | null; tokens_per_second: number | null; seconds: number | null }
  | { kind: "validation"; step: number; loss: number | null; bits_per_byte: number | null; best: boolean }
  | { kind: "sample"; step: number; prompt: string; text: string }
  | { kind: "signal"; step: number; layers: Layer[] }
  | { kind: "notice"; step: number; text: string }
  | { kind: "finished"; step: number; reason: string; seconds: number | null }
  | { kind: "checkpoint" | "threads"; step: number };

export interface Position {
  bytes: number;
  crc32: string;
  format: number;
}

export interface FollowItem {
  heartbeat?: true;
  events: RunEvent[];
  position: Position;
  restarted: boolean;
  training: boolean;
  job: Job | null;
}
