// The libraries of the dashboard, as one module. `npm run build` bundles it into vendor.mjs.
export { h, render, createContext, Fragment } from "preact";
export { useCallback, useContext, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export { default as htm } from "htm";
export { lexer } from "marked";
export { Graph, layout } from "@dagrejs/dagre";
export { default as uPlot } from "uplot";
