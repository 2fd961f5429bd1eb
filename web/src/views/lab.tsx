export default function View() {
  return <h1>lab</h1>;
}
