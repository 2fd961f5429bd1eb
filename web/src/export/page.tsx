/** The page of an exported model: its facts, a prompt, and the text with what the model predicted at each token. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { ErrorBox } from "../components/error-box";
import { Preferences } from "../components/preferences";
import { PromptForm } from "../components/prompt-form";
import { TextPanels } from "../components/text-panels";
import { formatInteger, t } from "../i18n";
import type { Loaded } from "./load";
import { Session } from "./session";
import { DEFAULTS, generationSettings } from "./settings";
import { Attention, Lens } from "./views";

/** A model of at most this size writes a first text by itself, in a second or so. */
const SMALL_MODEL = 5_000_000;
const LIMITS = { max_new_tokens: 10_000 };

export function Page({ loaded }: { loaded: Loaded }) {
  const session = useMemo(() => new Session(loaded), [loaded]);
  const prompt = useSignal(loaded.payload.prompt);
  const sampling = useSignal(DEFAULTS);
  const start = () => void session.start(prompt.value, generationSettings(sampling.value));
  useEffect(() => {
    if (loaded.payload.facts.parameters <= SMALL_MODEL) start();
  }, [session]);
  return (
    <>
      <header class="top">
        <strong class="brand">
          norm<span>[</span>scope<span>]</span>
        </strong>
        <Preferences />
      </header>
      <main id="main">
        <h1>{loaded.payload.facts.name}</h1>
        <Facts loaded={loaded} />
        <div class="export-grid">
          <PromptForm {...{ prompt, sampling }} limits={LIMITS} running={session.running.value} onStart={start} onStop={() => session.stop()} />
          <Text session={session} />
          <Lens session={session} />
          <Attention session={session} />
        </div>
        <Footer />
      </main>
    </>
  );
}

function Facts({ loaded }: { loaded: Loaded }) {
  const { facts, config, weights } = loaded.payload;
  const items = [
    t("export.facts.parameters", { count: formatInteger(facts.parameters), weights }),
    t("export.facts.shape", { depth: config.depth, width: config.width, heads: config.heads, context: config.context }),
    t("export.facts.steps", { step: formatInteger(facts.step), steps: formatInteger(facts.steps) }),
    ...(facts.loss === null ? [] : [t("export.facts.loss", { loss: facts.loss.toFixed(3) })]),
    ...(facts.bits_per_byte === null ? [] : [t("export.facts.bits", { bits: facts.bits_per_byte.toFixed(3) })]),
    ...(facts.floor === null ? [] : [t("export.facts.floor", { floor: facts.floor.toFixed(3) })]),
  ];
  return (
    <ul class="facts faint">
      {items.map((item) => (
        <li key={item}>{item}</li>
      ))}
    </ul>
  );
}

function Text({ session }: { session: Session }) {
  const { tokens, selected, outcome, error, running } = session;
  const done = outcome.value;
  return (
    <TextPanels tokens={tokens.value} selected={selected.value} onSelect={(index) => (selected.value = index)} running={running.value}>
      <ErrorBox error={error.value} />
      <p class="faint status" role="status">
        {done &&
          t(`export.done.${done.reason}`, { count: done.tokens, speed: Math.round(done.tokens / Math.max(done.seconds, 1e-3)) })}
      </p>
    </TextPanels>
  );
}

function Footer() {
  const licenses = document.getElementById("licenses")?.textContent ?? "";
  return (
    <footer class="faint">
      <p>{t("export.about")}</p>
      <details>
        <summary>{t("export.licenses")}</summary>
        <pre tabIndex={0}>{licenses.replaceAll("&lt;", "<")}</pre>
      </details>
    </footer>
  );
}
