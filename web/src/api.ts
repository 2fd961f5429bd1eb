/** Requests to the server: `call` for one answer, `upload` for a file, `stream` for one JSON object per line. */
import { effect, signal } from "@preact/signals";

/** Whether the last request reached the server; the shell shows a banner if it did not. */
export const connected = signal(true);

/** How often the connection came back: what failed without it is tried again when this changes. */
export const reconnections = signal(0);

/** An error that the server explains: what is wrong, how to fix it, and the characters of a scope that it points at. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly fix: string = "",
    readonly span?: [number, number],
  ) {
    super(message);
  }
}

/** The server could not be reached, or stopped answering. */
export class ConnectionError extends Error {}

function lost(problem: unknown): ConnectionError {
  connected.value = false;
  return new ConnectionError(String(problem), { cause: problem });
}

interface Described {
  error: { message: string; fix?: string; span?: [number, number] };
}

const asError = ({ error }: Described) => new ApiError(error.message, error.fix, error.span);

async function post(name: string, type: string, body: BodyInit, abort?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`api/${name}`, { method: "POST", headers: { "Content-Type": type }, body, signal: abort });
  } catch (problem) {
    throw abort?.aborted ? problem : lost(problem);
  }
  connected.value = true;
  if (!response.ok) {
    const text = await response.text();
    if (response.headers.get("Content-Type")?.includes("json")) throw asError(JSON.parse(text) as Described);
    throw new ApiError(text || response.statusText);
  }
  return response;
}

const postJson = (name: string, request: unknown, abort?: AbortSignal) => post(name, "application/json", JSON.stringify(request), abort);

/** Call an endpoint of `normscope.studio.views`. */
export async function call<Result>(name: string, request: unknown = {}, abort?: AbortSignal): Promise<Result> {
  return (await (await postJson(name, request, abort)).json()) as Result;
}

const PING = 1000;
/** A cheap endpoint, to find out whether the server is back. */
const CHEAP = "scope/norms";

// While the connection is lost, ask until the server answers; any answer will do.
effect(() => {
  if (connected.value) return undefined;
  const timer = setInterval(() => void call(CHEAP, {}, AbortSignal.timeout(4 * PING)).catch(() => undefined), PING);
  return () => (clearInterval(timer), (reconnections.value = reconnections.peek() + 1));
});

/** Send a file to an endpoint that takes one. */
export async function upload<Result>(name: string, file: File): Promise<Result> {
  return (await (await post(name, "application/octet-stream", file)).json()) as Result;
}

/** Call an endpoint that streams; yields one object per line until it ends. Throws if the connection breaks. */
export async function* stream<Item>(name: string, request: unknown, abort: AbortSignal): AsyncGenerator<Item> {
  const response = await postJson(name, request, abort);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        const item = JSON.parse(line) as Item | Described;
        if (item && typeof item === "object" && "error" in item && item.error) throw asError(item as Described);
        yield item as Awaited<Item>;
      }
    }
  } catch (problem) {
    throw abort.aborted || problem instanceof ApiError ? problem : lost(problem);
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Follow a stream and reconnect when the connection breaks. `request` is asked again each time, to continue where it stopped. */
export async function follow<Item>(
  name: string,
  request: () => unknown,
  receive: (item: Item) => void,
  abort: AbortSignal,
): Promise<void> {
  for (let wait = 250; !abort.aborted; ) {
    try {
      for await (const item of stream<Item>(name, request(), abort)) {
        wait = 250;
        receive(item);
      }
      return;
    } catch (problem) {
      if (problem instanceof ApiError || abort.aborted) throw problem;
      await new Promise((resume) => setTimeout(resume, wait));
      wait = Math.min(2 * wait, 4000);
    }
  }
}
