export default function View() {
  return <h1>embedding</h1>;
}
