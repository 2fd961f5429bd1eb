/** An image becomes a sequence of patches: (N, C, H, W) -> (N, patches, values of a patch) -> (N, S, D). */
import { useComputed, useSignal } from "@preact/signals";
import { Choice } from "../../components/choice";
import { ErrorBox } from "../../components/error-box";
import { formatFixed } from "../../components/format";
import { useResult } from "../../components/use-result";
import { t } from "../../i18n";
import { colorAt, paint } from "./pixels";
import { PixelEditor } from "./pixel-editor";
import type { ImagePatches } from "./types";
import { VectorTable } from "./vector-table";

export function ImageSection() {
  /** Null for the server's own picture and patch size. */
  const pixels = useSignal<number[] | null>(null);
  const patch = useSignal<number | null>(null);
  const request = useComputed(() => ({ pixels: pixels.value, ...(patch.value && { patch: patch.value }) }));
  const { data, error } = useResult<ImagePatches>("embedding/image", request, 40).value;
  return (
    <section class="panel" aria-labelledby="image-heading">
      <h2 id="image-heading">{t("embedding.image")}</h2>
      <p>{t("embedding.image.intro")}</p>
      <ErrorBox error={error} />
      {data ? (
        <Patches
          image={data}
          size={patch.value ?? data.patch}
          onPatch={(size) => (patch.value = size)}
          onPaint={(pixel, color) => (pixels.value = paint(pixels.peek() ?? data.pixels, data.size, pixel, color))}
          onReset={() => (pixels.value = null)}
        />
      ) : (
        <p class="loading">{t("shell.loading")}</p>
      )}
    </section>
  );
}

interface PatchesProps {
  image: ImagePatches;
  /** The chosen patch size, which the image has once the server has answered. */
  size: number;
  onPatch: (size: number) => void;
  onPaint: (pixel: number, color: string) => void;
  onReset: () => void;
}

function Patches({ image, size, onPatch, onPaint, onReset }: PatchesProps) {
  const chosen = useSignal(0);
  const color = useSignal("#b4232c");
  const at = Math.min(chosen.value, image.patches.length - 1);
  const shape = (sizes: number[]) => `(${sizes.join(", ")})`;
  return (
    <>
      <div class="row">
        <Choice
          label={t("embedding.patch")}
          value={String(size)}
          options={image.patch_sizes.map((n) => ({ value: String(n), label: `${n} × ${n}` }))}
          onChange={(chosen) => onPatch(Number(chosen))}
        />
        <label class="field">
          {t("embedding.color")}
          <input type="color" value={color.value} onInput={(event) => (color.value = event.currentTarget.value)} />
        </label>
        <button type="button" onClick={onReset}>
          {t("embedding.reset-image")}
        </button>
      </div>
      <div class="grid patches-grid">
        <div>
          <h3>
            {t("embedding.image.pixels")} <span class="mono">{shape(image.image_shape)}</span>
          </h3>
          <p class="faint">{t("embedding.image.paint")}</p>
          <PixelEditor
            image={image}
            chosen={at}
            onPatch={(patch) => (chosen.value = patch)}
            onPaint={(pixel) => onPaint(pixel, color.value)}
          />
        </div>
        <div>
          <h3>
            {t("embedding.image.sequence")} <span class="mono">{shape(image.patches_shape)}</span>
          </h3>
          <p class="faint">{t("embedding.image.sequence.intro")}</p>
          <Sequence image={image} chosen={at} onChoose={(patch) => (chosen.value = patch)} />
        </div>
      </div>
      <h3>
        {t("embedding.image.values", { patch: at })} <span class="mono">({image.patches_shape[2]})</span>
      </h3>
      <PatchValues image={image} patch={at} />
      <h3>
        {t("embedding.image.embedded")} <span class="mono">{shape(image.embedded_shape)}</span>
      </h3>
      <p class="faint">
        {t("embedding.image.embedded.intro")} <code>{image.layer}</code>
      </p>
      <div class="scroll tall" role="region" aria-label={t("embedding.image.embedded")} tabIndex={0}>
        <VectorTable
          caption="b=0"
          width={image.embedded_shape[2]!}
          rows={image.embedded.map((vector, s) => ({ key: s, heading: s, vector }))}
          isLit={(row) => row === at}
        />
      </div>
    </>
  );
}

/** The patches in order, each a token. */
function Sequence({ image, chosen, onChoose }: { image: ImagePatches; chosen: number; onChoose: (patch: number) => void }) {
  const size = image.patch;
  return (
    <ol class="sequence">
      {image.places.map((places, s) => (
        <li key={s}>
          <button
            type="button"
            class="patch"
            aria-label={t("embedding.image.patch", { patch: s })}
            aria-current={s === chosen ? "true" : undefined}
            tabIndex={s === chosen ? 0 : -1}
            onClick={() => onChoose(s)}
            onPointerEnter={() => onChoose(s)}
            onKeyDown={(event) => {
              const next = s + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0);
              if (next === s || !image.places[next]) return;
              event.preventDefault();
              onChoose(next);
              event.currentTarget.closest("ol")!.querySelectorAll("button")[next]!.focus();
            }}
          >
            <span class="patch-pixels" style={`grid-template-columns: repeat(${size}, 1fr)`}>
              {places.slice(0, size * size).map((place) => (
                <i key={place} style={`background: ${colorAt(image.pixels, image.size, place)}`} />
              ))}
            </span>
            <small>{s}</small>
          </button>
        </li>
      ))}
    </ol>
  );
}

/** The values of a patch in their order: channel by channel, and row by row in each. */
function PatchValues({ image, patch }: { image: ImagePatches; patch: number }) {
  const perChannel = image.patch ** 2;
  return (
    <div class="scroll tall" role="region" aria-label={t("embedding.image.values", { patch })} tabIndex={0}>
      <table class="patch-values">
        <tbody>
          {["R", "G", "B"].map((name, channel) => (
            <tr key={name}>
              <th scope="row">
                c={channel} {name}
              </th>
              {image.patches[patch]!.slice(channel * perChannel, (channel + 1) * perChannel).map((value, i) => (
                <td key={i}>{formatFixed(value)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
