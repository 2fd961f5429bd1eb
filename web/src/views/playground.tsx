export default function View() {
  return <h1>playground</h1>;
}
