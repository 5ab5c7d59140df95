// What the scripts of a page are given and give each other, for `make lint-js`; no part of a page.

// ---- From Python: sections (../section.py) and the payload (payload*.py). Times are ns.

/** [tag, attributes, ...children], see elements.py, or a text. */
type Tree = string | [tag: string, attributes: any, ...children: any[]];
/** Its text, or the key by which it is sorted and what stands in it. */
type Cell = string | [key: string | number, ...children: any[]];
interface DataTable {
  title: string;
  captioned: boolean;
  fit: boolean;
  columns: { title: string; class: string; help: string | null; sorted: boolean }[];
  rows: Cell[][];
  foot: Cell[][];
}
interface Curve {
  label: string;
  time_ns: number[];
  peak: number | null;
  stacked: boolean;
  lines: { name: string; variable: string; values: number[] }[];
}
/** A few values again and again: each once, and the number of each bar's. */
interface Distinct<T> {
  of: T[];
  at: number[];
}
type Columns<T> = { [name in keyof T]: Distinct<T[name]> };
interface Bars {
  start: number[];
  duration: number[];
  name: Distinct<string>;
  kind: Distinct<string>;
  call: (number | null)[];
  facts: Fact[][];
}
interface GanttPayload {
  end: number;
  calls: [number, number] | null;
  heads: { text: string; top: number }[];
  rows: { top: number; first: number; end: number }[];
  height: number;
  legend: Tree;
  bars: Bars;
  modes: string[];
  pauses: [number, number][];
}
interface Site {
  op: string | null;
  node: string | null;
  fqn: string | null;
  outside: string | null;
  /** Of its graph. */
  label: string;
  category: string;
  module: string | null;
  location: string | null;
  function: string | null;
  code: string | null;
}
interface Device {
  units: {
    graph: number;
    key: number[];
    line: number[];
    before: number[];
    after: number[];
  }[];
  steps: { unit: number; rest: number; own: number; between: number }[];
  lists: number[][];
  items: Columns<{ site: number; nbytes: number; owner: string | null; hold: string }>;
  calls: { graph: number[]; step: number[] };
  peak: [call: number, instant: number, nbytes: number] | null;
}
interface Graph {
  id: number;
  label: string;
  /** Numbers of `texts`. */
  lines: Record<number, number>;
}
interface Profile {
  elements: Tree[];
  templates: Record<string, DataTable>;
  curves: Record<string, Curve>;
  gantt: GanttPayload;
  views: string[];
  device: Device;
  graphs: Record<number, Graph>;
  sites: Columns<Site> & Record<string, Distinct<any>>;
  places: Record<string, Columns<{ key: string; known: boolean; below: string[] }>>;
  texts: string[];
}
interface Payload {
  /** How several ranks compare; then the profile is of the one with the highest peak. */
  ranks: Tree | null;
  profile: Profile;
}

// ---- Between the scripts

type Child = Node | string | null | undefined | false | Child[];
type Fact = [label: string, value: string | null | undefined | false];
type Draw = (state: State, root: HTMLElement) => void;
type Position = [call: number, position: number];

/** A storage that is live: where it comes from, and what it is. */
type Detail = Site & {
  nbytes: number;
  owner: string | null;
  hold: string;
};
interface Part {
  key: string;
  known: boolean;
  below: (string | null | undefined)[];
  nbytes: number;
  storages: number;
  items: number[];
}
/** Bytes at each position of a step: in all, and by category, `STACK.length` numbers a position. */
interface Levels {
  total: Float64Array;
  stack: Float64Array;
  /** The first positions with most and with least, of those inside the call. */
  highest: number;
  lowest: number;
}

/**
 * The live sets of a device. A *position* of a call is an instant of its program, 0 to `last(call)`,
 * or the one after that: between the call and the next one. A call that was not observed has 0 alone.
 */
interface Model {
  peak: Device["peak"];
  /** Of each item. */
  siteOf: number[];
  nbytes: number[];
  length: number;
  last(call: number): number;
  graph(call: number): Graph;
  unit(call: number): Device["units"][number] | undefined;
  levels(call: number): Levels;
  /** Live bytes, of one category or of all. */
  bytes(call: number, position: number, category?: string): number;
  /** What is live: how often each item is. */
  live(call: number, position: number): Map<number, number>;
  /** One of the views of a live set, the largest part first; those not `known` are its remainder. */
  breakdown(live: Map<number, number>, view: string): Part[];
  describe(item: number): Detail;
  /** What has just happened, in words. */
  event(call: number, position: number): string;
  /** The categories of all that is ever live, from the bottom of a stack. */
  categories: string[];
}

/** What the reader has chosen, and what is drawn again when that changes. */
interface State {
  profile: Profile;
  model: Model;
  call: number;
  position: number;
  live: Map<number, number>;
  total: number;
  onSelect(draw: () => void): void;
  /** Chooses a position of a call, the nearest that there is. */
  select(call: number, position: number): void;
  selectPeak(): void;
  /** The next or previous instant, in this call or the one beside it. */
  move(by: number): void;
  moveCall(by: number): void;
  nameOf(call: number, position: number): string;
}

interface ChartOptions {
  label: string;
  height: number;
  end: number;
  /** The shortest window. */
  least: number;
  data(from: number, to: number, width: number): number[][];
  series: uPlot.Series[];
  axes: uPlot.Axis[];
  padding?: uPlot.Padding;
  draw?: (plot: uPlot) => void;
  /** The tooltip at `x`. */
  hover?: (x: number) => string;
  click?: (x: number) => void;
}

/** A picture over time and its window, `from` to `to`. */
interface Chart {
  plot?: uPlot;
  from: number;
  to: number;
  set(from: number, to: number): void;
  /** Moves the window by a part of its length, and shows less by a factor above 1. */
  move(part: number, factor?: number): void;
  whole(): void;
  /** Where a value is, in pixels from the left of the plot. */
  x(value: number): number;
  redraw(): void;
}

interface Window {
  /** For a console, and for tests. */
  memprof: Record<string, any>;
}
