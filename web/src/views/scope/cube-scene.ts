/** The cells of a tensor as a block that can be turned, drawn by three.js. Loaded when the tab is opened. */
import {
  AmbientLight,
  BoxGeometry,
  Color,
  DirectionalLight,
  InstancedMesh,
  Matrix4,
  MeshLambertMaterial,
  PerspectiveCamera,
  Quaternion,
  Raycaster,
  Scene,
  Spherical,
  Vector2,
  Vector3,
  WebGLRenderer,
} from "three";
import { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";
import { coordinates } from "../../components/cells";
import { themeColor } from "../../components/theme";

export interface CubeCells {
  shape: number[];
  axes: string[];
  groups: number[];
  mask: boolean[] | null;
  lit: number | null;
  selected: number | null;
}

export interface CubeLabel {
  text: string;
  left: number;
  top: number;
}

export interface CubeEvents {
  onHover: (index: number | null) => void;
  onSelect: (index: number) => void;
  /** The labels of the axes, at their places on the canvas. */
  onLabels: (labels: CubeLabel[]) => void;
}

/** A cell that is lit up fills its place; the others are small, so that one sees through to it. */
const LIT_SIZE = 0.9;
const FAINT_SIZE = 0.42;
/** Space between the images of a batch, and between the sequences. */
const BETWEEN_IMAGES = 1.5;
const BETWEEN_SEQUENCES = 1.7;
const START = new Spherical(1, 1.12, 0.62);

/** Where a cell is. Images: w across, h down, c deep, side by side for n. Text: d across, s down, b deep. */
function place(at: number[], shape: number[]): Vector3 {
  if (shape.length === 4) {
    const [n, c, h, w] = at as [number, number, number, number];
    return new Vector3(w + n * (shape[3]! + BETWEEN_IMAGES), -h, -c);
  }
  const [b, s, d] = at as [number, number, number];
  return new Vector3(d, -s, -b * BETWEEN_SEQUENCES);
}

export class CubeScene {
  private readonly renderer: WebGLRenderer;
  private readonly scene = new Scene();
  private readonly camera = new PerspectiveCamera(24, 1, 0.1, 500);
  private readonly controls: OrbitControls;
  private mesh: InstancedMesh | null = null;
  private cells: CubeCells | null = null;
  private middle = new Vector3();
  /** Half the size of the block, with space for the labels. */
  private half = new Vector3(1, 1, 1);

  /** Throws if there is no WebGL. */
  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly events: CubeEvents,
  ) {
    this.renderer = new WebGLRenderer({ canvas, antialias: true, alpha: true });
    this.scene.add(new AmbientLight(0xffffff, 1.9));
    const sun = new DirectionalLight(0xffffff, 1.8);
    sun.position.set(0.5, 1, 0.8);
    this.camera.add(sun);
    this.scene.add(this.camera);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.enableZoom = false; // the wheel scrolls the page
    this.controls.enablePan = false;
    canvas.style.touchAction = "pan-y"; // and so does a finger that moves up or down
    this.controls.addEventListener("change", () => this.render());
    this.listen();
  }

  update(cells: CubeCells): void {
    const isNew = this.cells?.shape.join() !== cells.shape.join();
    this.cells = cells;
    if (isNew) this.build(cells.shape);
    this.paint();
    if (isNew) this.reset();
    else this.render();
  }

  /** Turn by angles in radians, as dragging does. */
  turn(across: number, down: number): void {
    const angles = new Spherical().setFromVector3(this.camera.position);
    angles.theta -= across;
    angles.phi -= down;
    this.look(angles.makeSafe());
  }

  reset(): void {
    this.look(START);
  }

  resize(): void {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement!;
    if (!width || !height) return;
    this.renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.look(new Spherical().setFromVector3(this.camera.position));
  }

  dispose(): void {
    this.controls.dispose();
    this.mesh?.dispose();
    this.renderer.dispose();
  }

  /** Colors of the page's theme, which are known to CSS only. */
  paint(): void {
    if (!this.mesh || !this.cells) return;
    const colors = themeColors();
    const { groups, mask, lit, selected, shape } = this.cells;
    const [matrix, turned, color] = [new Matrix4(), new Quaternion(), new Color()];
    for (let i = 0; i < groups.length; i++) {
      const isLit = groups[i] === lit;
      const isPadding = mask !== null && !mask[i];
      const size = i === selected ? 1.02 : isLit ? LIT_SIZE : FAINT_SIZE;
      const center = place(coordinates(i, shape), shape).sub(this.middle);
      this.mesh.setMatrixAt(i, matrix.compose(center, turned, new Vector3(size, size, size)));
      if (i === selected) color.copy(colors.selected);
      else if (isLit) color.copy(colors.lit);
      else color.copy(colors.series[groups[i]! % 6]!).lerp(colors.panel, 0.35);
      if (isPadding && i !== selected) color.lerp(colors.padding, isLit ? 0.6 : 0.85);
      this.mesh.setColorAt(i, color);
    }
    this.mesh.instanceMatrix.needsUpdate = true;
    this.mesh.instanceColor!.needsUpdate = true;
    this.mesh.computeBoundingSphere();
    this.render();
  }

  private build(shape: number[]): void {
    if (this.mesh) {
      this.scene.remove(this.mesh);
      this.mesh.dispose();
    }
    const count = shape.reduce((product, size) => product * size, 1);
    this.mesh = new InstancedMesh(new BoxGeometry(1, 1, 1), new MeshLambertMaterial(), count);
    this.scene.add(this.mesh);
    const last = place(
      shape.map((size) => size - 1),
      shape,
    );
    this.middle = last.clone().multiplyScalar(0.5);
    this.half = new Vector3(Math.abs(last.x), Math.abs(last.y), Math.abs(last.z)).multiplyScalar(0.5).addScalar(0.8);
  }

  private look(angles: Spherical): void {
    this.camera.position.setFromSpherical(new Spherical(this.distance(), angles.phi, angles.theta));
    this.controls.update();
    this.render();
  }

  /** How far away the camera must be to see the whole block from the first view; it stays there while turning. */
  private distance(): number {
    const forward = new Vector3().setFromSpherical(START).normalize();
    const right = new Vector3(0, 1, 0).cross(forward).normalize();
    const up = forward.clone().cross(right);
    const tall = Math.tan((this.camera.fov * Math.PI) / 360);
    const wide = tall * this.camera.aspect;
    let distance = 1;
    for (const x of [-1, 1]) {
      for (const y of [-1, 1]) {
        for (const z of [-1, 1]) {
          const corner = this.half.clone().multiply(new Vector3(x, y, z));
          const needed = Math.max(Math.abs(corner.dot(right)) / wide, Math.abs(corner.dot(up)) / tall);
          distance = Math.max(distance, corner.dot(forward) + needed);
        }
      }
    }
    return distance;
  }

  private render(): void {
    this.renderer.render(this.scene, this.camera);
    if (this.cells) this.events.onLabels(this.labels(this.cells));
  }

  /** The names of the axes at the edges of the block. */
  private labels({ shape, axes }: CubeCells): CubeLabel[] {
    const far = shape.map((size) => size - 1);
    const at = (position: Vector3, text: string): CubeLabel => {
      const seen = position.sub(this.middle).project(this.camera);
      const { clientWidth, clientHeight } = this.canvas;
      return { text, left: ((seen.x + 1) / 2) * clientWidth, top: ((1 - seen.y) / 2) * clientHeight };
    };
    const bottom = -shape.at(-2)! + 1;
    const across = shape.at(-1)! - 1;
    const end = place(far, shape);
    const deep = shape.length === 4 ? axes[1]! : axes[0]!;
    return [
      at(new Vector3(across / 2, bottom - 1.1, 0.6), `${axes.at(-1)} →`),
      at(new Vector3(-1.1, bottom / 2, 0.6), `${axes.at(-2)} ↓`),
      at(new Vector3(end.x + 1.1, bottom - 0.6, end.z / 2), `${deep} ↗`),
      ...(shape.length === 4
        ? Array.from({ length: shape[0]! }, (_, n) =>
            at(place([n, 0, 0, 0], shape).add(new Vector3(across / 2, 1.1, end.z / 2)), `${axes[0]}=${n}`),
          )
        : []),
    ];
  }

  private listen(): void {
    const { canvas, events } = this;
    let pressed: [number, number] | null = null;
    canvas.addEventListener("pointerdown", (event) => (pressed = [event.clientX, event.clientY]));
    canvas.addEventListener("pointermove", (event) => {
      if (!event.buttons) events.onHover(this.cellAt(event));
    });
    canvas.addEventListener("pointerleave", () => events.onHover(null));
    canvas.addEventListener("pointerup", (event) => {
      const moved = pressed ? Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) : Infinity;
      const cell = moved < 5 ? this.cellAt(event) : null; // a click, not a turn
      if (cell !== null) events.onSelect(cell);
    });
  }

  private cellAt(event: PointerEvent): number | null {
    if (!this.mesh) return null;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const ray = new Raycaster();
    ray.setFromCamera(new Vector2(2 * x - 1, 1 - 2 * y), this.camera);
    return ray.intersectObject(this.mesh)[0]?.instanceId ?? null;
  }
}

function themeColors() {
  const read = (name: string) => new Color(themeColor(`--${name}`));
  return {
    lit: read("accent"),
    selected: read("warm"),
    panel: read("panel"),
    padding: read("edge"),
    series: [..."abcdef"].map((letter) => read(`series-${letter}`)),
  };
}
