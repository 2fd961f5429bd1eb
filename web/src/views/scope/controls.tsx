/** What the norm and the tensor are: layout, norm or scope, sizes, groups, padding. */
import type { Signal } from "@preact/signals";
import { Choice } from "../../components/choice";
import { NumberInput } from "../../components/number-input";
import { t } from "../../i18n";
import { scopeError, ScopeInput, ScopeMessage } from "./scope-input";
import type { LayoutName, NormName, Offer, Settings, Split, Worked } from "./types";

interface ControlsProps {
  offer: Offer;
  settings: Signal<Settings>;
  worked: Worked | null;
  error: unknown;
}

/** The settings of a layout, with the norm that was chosen before. */
export function settingsFor(offer: Offer, layout: LayoutName, norm: NormName): Settings {
  const { shape, scopes } = offer.layouts[layout];
  return {
    ...{ layout, shape, norm, scope: scopes[norm], statistic: "standardize", sizes: {} },
    ...{ edits: {}, weight: {}, bias: {}, padding: false, masked: false, pad_value: 0, earlier_batches: 0 },
  };
}

export function Controls({ offer, settings, worked, error }: ControlsProps) {
  const now = settings.value;
  const change = (changes: Partial<Settings>) => (settings.value = { ...settings.peek(), ...changes });
  const { axes, scopes } = offer.layouts[now.layout];
  const splits = worked && !error ? worked.splits : [];
  return (
    <section class="panel scope-controls" aria-label={t("scope.settings")}>
      <div class="row">
        <Choice
          label={t("scope.layout")}
          value={now.layout}
          options={[
            { value: "image", label: t("scope.layout.image") },
            { value: "text", label: t("scope.layout.text") },
          ]}
          onChange={(layout) =>
            (settings.value = { ...settingsFor(offer, layout, now.norm ?? "layer"), padding: now.padding, masked: now.masked })
          }
        />
        <Choice
          label={t("scope.norm")}
          value={now.norm}
          options={offer.norms.map(({ name, title }) => ({ value: name, label: title }))}
          onChange={(norm) => change({ norm, scope: scopes[norm], weight: {}, bias: {}, sizes: {} })}
        />
      </div>
      <div class="row scope-row">
        <ScopeInput
          value={now.scope}
          error={error}
          onInput={(scope) => change({ norm: null, scope, weight: {}, bias: {} })}
        />
        <ScopeMessage error={scopeError(error)} />
        <Choice
          label={t("scope.statistic")}
          value={now.norm === null ? now.statistic : worked?.centers === false ? "rms" : "standardize"}
          options={(["standardize", "rms"] as const).map((value) => ({
            value,
            label: t(`scope.statistic.${value}`),
            disabled: now.norm !== null,
          }))}
          onChange={(statistic) => change({ statistic })}
        />
        <fieldset class="sizes">
          <legend>{t("scope.sizes")}</legend>
          {axes.map((axis, i) => (
            <label key={`${now.layout} ${axis}`} class="mono">
              {axis}
              <NumberInput
                value={now.shape[i]!}
                min={1}
                max={offer.max_size}
                step={1}
                onChange={(size) =>
                  change({ shape: now.shape.map((old, axis) => (axis === i ? size : old)), edits: {}, weight: {}, bias: {}, sizes: {} })
                }
              />
            </label>
          ))}
        </fieldset>
      </div>
      {/* Reserved space: choosing a norm with a slider moves nothing. */}
      <div class="row switches">
        <label>
          <input
            type="checkbox"
            checked={now.padding}
            onChange={(event) => change({ padding: event.currentTarget.checked })}
          />{" "}
          {t("scope.padding")}
        </label>
        <label class={now.padding ? "" : "off"}>
          <input
            type="checkbox"
            checked={now.masked}
            disabled={!now.padding}
            onChange={(event) => change({ masked: event.currentTarget.checked })}
          />{" "}
          {t("scope.mask")}
        </label>
        <label class={now.padding ? "" : "off"}>
          {t("scope.pad-value")}{" "}
          <NumberInput
            class="short"
            value={now.pad_value}
            min={-1e6}
            max={1e6}
            disabled={!now.padding}
            onChange={(pad_value) => change({ pad_value })}
          />
        </label>
        {splits.map((split) => (
          <SplitSlider
            key={split.name}
            split={split}
            onChange={(size) => change({ sizes: { ...now.sizes, [split.name]: size }, weight: {}, bias: {} })}
          />
        ))}
        {now.norm === "power" && (
          <label class="field">
            {t("scope.batches", { count: now.earlier_batches })}
            <input
              type="range"
              min={0}
              max={50}
              value={now.earlier_batches}
              onInput={(event) => change({ earlier_batches: event.currentTarget.valueAsNumber })}
            />
          </label>
        )}
      </div>
    </section>
  );
}

/** The size of a split axis, through the divisors of its dimension: for GroupNorm from one group to one per channel. */
function SplitSlider({ split, onChange }: { split: Split; onChange: (size: number) => void }) {
  const at = split.sizes.indexOf(split.size);
  const names = split.same_as[at]!.filter((name) => name !== "GroupNorm");
  const end = (i: number) => split.same_as.at(i)!.filter((name) => name !== "GroupNorm")[0] ?? "";
  const value = `${split.name}=${split.size}${names.length ? `: ${t("scope.same-as", { names: names.join(", ") })}` : ""}`;
  return (
    <label class="field split">
      <span>
        {t("scope.groups")} <strong class="mono">{value}</strong>
      </span>
      {/* From the largest number of groups to one, as one reads it: InstanceNorm, GroupNorm, LayerNorm. */}
      <input
        type="range"
        min={0}
        max={split.sizes.length - 1}
        value={split.sizes.length - 1 - at}
        aria-valuetext={value}
        onInput={(event) => onChange(split.sizes[split.sizes.length - 1 - event.currentTarget.valueAsNumber]!)}
      />
      <span class="ends">
        <span>
          {split.name}={split.sizes.at(-1)} {end(-1)}
        </span>
        <span>
          {split.name}={split.sizes[0]} {end(0)}
        </span>
      </span>
    </label>
  );
}
