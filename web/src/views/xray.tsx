export default function View() {
  return <h1>xray</h1>;
}
