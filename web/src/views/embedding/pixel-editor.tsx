/** The image, with its patches apart from each other. Click, drag, or press Enter to paint a pixel. */
import { useSignal } from "@preact/signals";
import { neighbor } from "../../components/cells";
import { t } from "../../i18n";
import { colorAt, patchOfPixel } from "./pixels";
import type { ImagePatches } from "./types";

export function PixelEditor(props: {
  image: ImagePatches;
  chosen: number;
  onPatch: (patch: number) => void;
  onPaint: (pixel: number) => void;
}) {
  const { image } = props;
  const focused = useSignal(0);
  const patches = patchOfPixel(image.places, image.size);
  const startsPatch = (at: number) => at > 0 && at % image.patch === 0;

  function onKeyDown(event: KeyboardEvent) {
    const next = neighbor(focused.value, [image.size, image.size], event.key);
    if (next === focused.value) return;
    event.preventDefault();
    (event.currentTarget as HTMLElement).querySelectorAll("button")[next]!.focus();
  }

  return (
    <div
      class="pixels"
      role="group"
      aria-label={t("embedding.image.pixels")}
      style={`grid-template-columns: repeat(${image.size}, auto)`}
      onKeyDown={onKeyDown}
    >
      {patches.map((patch, pixel) => {
        const [h, w] = [Math.floor(pixel / image.size), pixel % image.size];
        const color = colorAt(image.pixels, image.size, pixel);
        return (
          <button
            key={pixel}
            type="button"
            class={["pixel", patch === props.chosen && "lit", startsPatch(h) && "below", startsPatch(w) && "right"]
              .filter(Boolean)
              .join(" ")}
            style={`background: ${color}`}
            aria-label={`h=${h} w=${w}: ${color}, ${t("embedding.image.patch", { patch })}`}
            tabIndex={pixel === focused.value ? 0 : -1}
            onFocus={() => ((focused.value = pixel), props.onPatch(patch))}
            onClick={() => props.onPaint(pixel)}
            onPointerEnter={(event) => {
              props.onPatch(patch);
              if (event.buttons) props.onPaint(pixel);
            }}
          />
        );
      })}
    </div>
  );
}
