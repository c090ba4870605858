// Package crashtest kills stores while clients use them, and compares what the clients see
// afterwards with what the stores acknowledged.
//
// A [History] is what clients saw of one key; its Check says whether the operations are
// linearizable, by github.com/anishathalye/porcupine and the rules of a durable store: values,
// versions, fences, conditions, lifetimes, crashes, and requests that were never answered.
package crashtest
