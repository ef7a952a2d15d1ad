// The types of vendor.mjs: those of the packages in package-lock.json, after `npm ci`.
export { h, render, createContext, Fragment } from "preact";
export { useCallback, useContext, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
export { default as htm } from "htm";
export { lexer } from "marked";
export { Graph, layout } from "@dagrejs/dagre";
export { default as uPlot } from "uplot";
