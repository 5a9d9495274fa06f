// Package layers holds the commands of agentsafectl that show what tasks have changed in their workspaces, take it back
// and promote it: log, show, diff, undo, redo, checkpoint, restore, promote, export, import, layers.
//
// Data in: the names of containers, transactions and paths, and the layers below the data directory. Data out: tables,
// diffs and archives on the standard output, and what fs/layer does. The package decides nothing about layers itself.
//
// Whatever comes from a layer is printed through show.Safe: names and contents can't drive a terminal. Archives and
// patches are bytes and are refused on a terminal.
//
// Minimum kernel: 5.15.
//
// Rejected: one command with sub-commands for everything (`agentsafectl layer undo`): these are the words that people
// type all day.
package layers
