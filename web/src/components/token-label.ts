/** Texts of tokens and probabilities, as lists show them. */

/** A token with its spaces and line breaks visible. */
export function visible(label: string): string {
  return label.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

export function formatProbability(probability: number): string {
  const percent = 100 * probability;
  if (percent >= 99.95 || percent === 0) return `${percent.toFixed(0)}%`;
  if (percent >= 0.1) return `${percent.toFixed(1)}%`;
  return percent >= 0.001 ? `${percent.toFixed(3)}%` : "<0.001%";
}
