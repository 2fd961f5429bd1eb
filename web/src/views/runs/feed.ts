/** The events of runs, as they come in. A feed that is interrupted continues where it stopped. */
import { signal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { follow } from "../../api";
import type { FollowItem, Job, Layer, Position, RunEvent } from "./types";

export interface Curve {
  x: number[];
  y: (number | null)[];
}

const CURVES = ["loss", "grad_norm", "lr_scale", "tokens_per_second", "validation", "bits_per_byte"] as const;
export type CurveName = (typeof CURVES)[number];

export interface RunData {
  curves: Record<CurveName, Curve>;
  step: number;
  steps: number;
  /** Entropy of the text in bits per byte, and as a loss in nats per token; null if it is unknown. */
  floor: number | null;
  floorNats: number | null;
  secondsPerStep: number | null;
  samples: { step: number; prompt: string; text: string }[];
  signals: { step: number; layers: Layer[] }[];
  notices: { step: number; text: string }[];
  finished: { reason: string; seconds: number | null } | null;
  position: Position | undefined;
  training: boolean;
  job: Job | null;
  error: unknown;
}

export function emptyRun(): RunData {
  const curves = Object.fromEntries(CURVES.map((name) => [name, { x: [], y: [] }])) as unknown as RunData["curves"];
  return {
    curves, step: 0, steps: 0, floor: null, floorNats: null, secondsPerStep: null, samples: [], signals: [], notices: [],
    finished: null, position: undefined, training: false, job: null, error: null,
  };
}

/** Add what the server sent. */
export function receive(data: RunData, item: FollowItem): RunData {
  if (item.heartbeat) return data;
  const next = { ...(item.restarted ? emptyRun() : data), position: item.position, training: item.training, job: item.job, error: null };
  const before = next.curves;
  next.curves = { ...before };
  for (const event of item.events) add(next, event);
  for (const name of CURVES) {
    // New objects where there are new points, so that charts notice.
    if (item.events.length) next.curves[name] = { ...before[name] };
  }
  return next;
}

function add(data: RunData, event: RunEvent): void {
  const push = (name: CurveName, value: number | null) => {
    data.curves[name].x.push(event.step);
    data.curves[name].y.push(value);
  };
  switch (event.kind) {
    case "started":
      data.steps = event.steps;
      data.floor = event.floor;
      data.floorNats = event.floor_nats;
      data.finished = null;
      break;
    case "step":
      push("loss", event.loss);
      push("grad_norm", event.grad_norm);
      push("lr_scale", event.lr_scale);
      push("tokens_per_second", event.tokens_per_second);
      if (event.seconds !== null) data.secondsPerStep = data.secondsPerStep === null ? event.seconds : 0.9 * data.secondsPerStep + 0.1 * event.seconds;
      break;
    case "validation":
      push("validation", event.loss);
      push("bits_per_byte", event.bits_per_byte);
      break;
    case "sample":
      data.samples = [event, ...data.samples];
      break;
    case "signal":
      data.signals = [...data.signals, event];
      break;
    case "notice":
      data.notices = [event, ...data.notices];
      break;
    case "finished":
      data.finished = event;
      break;
  }
  data.step = Math.max(data.step, event.step);
}

const feeds = new Map<string, Signal<RunData>>();

export function feedOf(name: string): Signal<RunData> {
  if (!feeds.has(name)) feeds.set(name, signal(emptyRun()));
  return feeds.get(name)!;
}

/** Follows a run while it is on the page; `session` changes when the run starts again. Shows nothing itself. */
export function Follow({ name, session, onEnd }: { name: string; session: string; onEnd: () => void }) {
  useEffect(() => {
    const feed = feedOf(name), abort = new AbortController();
    const request = () => ({ run: name, position: feed.peek().position });
    let trained = false;
    const add = (item: FollowItem) => {
      trained ||= item.training;
      feed.value = receive(feed.peek(), item);
    };
    follow<FollowItem>("runs/follow", request, add, abort.signal).then(
      () => trained && onEnd(),
      (error) => {
        if (!abort.signal.aborted) feed.value = { ...feed.peek(), error, training: false };
      },
    );
    return () => abort.abort();
  }, [name, session]);
  return null;
}
