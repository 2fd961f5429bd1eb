/** A text of the library: what stands in backticks in it is code. */
export function CodeText({ text }: { text: string }) {
  return <>{text.split("`").map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}</>;
}
