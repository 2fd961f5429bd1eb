/** The block of cells, with buttons and keys to turn it. Without WebGL, only the tables below it are shown. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ErrorBox } from "../../components/error-box";
import { isDark } from "../../components/theme";
import { useModule } from "../../components/use-module";
import { t } from "../../i18n";
import type { CubeCells, CubeLabel, CubeScene } from "./cube-scene";

const STEP = Math.PI / 12;
const TURNS: Record<string, [number, number]> = {
  ArrowLeft: [-STEP, 0],
  ArrowRight: [STEP, 0],
  ArrowUp: [0, -STEP],
  ArrowDown: [0, STEP],
};
const BUTTONS = [
  ["ArrowLeft", "scope.turn.left", "←"],
  ["ArrowRight", "scope.turn.right", "→"],
  ["ArrowUp", "scope.turn.up", "↑"],
  ["ArrowDown", "scope.turn.down", "↓"],
] as const;

interface CubeProps {
  cells: CubeCells;
  description: string;
  onHover: (index: number | null) => void;
  onSelect: (index: number) => void;
}

export function Cube({ cells, description, onHover, onSelect }: CubeProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const labels = useRef<HTMLDivElement>(null);
  const scene = useRef<CubeScene | null>(null);
  const shown = useRef(cells);
  const failed = useSignal(false);
  const { module, error } = useModule(() => import("./cube-scene")).value;
  shown.current = cells;

  useEffect(() => {
    if (!module) return undefined;
    try {
      scene.current = new module.CubeScene(canvas.current!, {
        onHover,
        onSelect,
        onLabels: (found) => labels.current && writeLabels(labels.current, found),
      });
    } catch {
      failed.value = true; // no WebGL
      return undefined;
    }
    const stop = follow(scene.current, canvas.current!.parentElement!);
    scene.current.update(shown.current);
    return () => (stop(), scene.current?.dispose());
  }, [module]);
  useEffect(() => scene.current?.update(cells));

  const turn = (key: string) => scene.current?.turn(...TURNS[key]!);
  if (error) return <ErrorBox error={error} />;
  if (failed.value) return <p class="cube-failed faint">{t("scope.no-webgl")}</p>;
  return (
    <>
      <div
        class="cube"
        role="group"
        tabIndex={0}
        aria-label={t("scope.cube")}
        onKeyDown={(event) => {
          if (!(event.key in TURNS)) return;
          event.preventDefault();
          turn(event.key);
        }}
      >
        <canvas ref={canvas} role="img" aria-label={description} />
        <div class="cube-labels mono" ref={labels} aria-hidden="true" />
      </div>
      <div class="row turn-buttons">
        {BUTTONS.map(([key, label, arrow]) => (
          <button key={key} type="button" aria-label={t(label)} title={t(label)} onClick={() => turn(key)}>
            {arrow}
          </button>
        ))}
        <button type="button" onClick={() => scene.current?.reset()}>
          {t("scope.turn.reset")}
        </button>
      </div>
    </>
  );
}

/** Redraw when the size or the theme changes. Returns a function that ends this. */
function follow(scene: CubeScene, box: HTMLElement): () => void {
  const sizes = new ResizeObserver(() => scene.resize());
  sizes.observe(box);
  const unsubscribe = isDark.subscribe(() => scene.paint());
  return () => {
    sizes.disconnect();
    unsubscribe();
  };
}

/** Written without Preact: they move with every frame while the block is turned. */
function writeLabels(box: HTMLElement, labels: CubeLabel[]): void {
  while (box.children.length > labels.length) box.lastChild!.remove();
  labels.forEach(({ text, left, top }, i) => {
    const label = box.children[i] ?? box.appendChild(document.createElement("span"));
    label.textContent = text;
    (label as HTMLElement).style.transform = `translate(-50%, -50%) translate(${left.toFixed(1)}px, ${top.toFixed(1)}px)`;
  });
}
