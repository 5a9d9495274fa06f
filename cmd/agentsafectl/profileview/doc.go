// Package profileview shows profiles to people: what one grants, several beside each other, what one grants that another
// does not, and what looks wrong in one although it is valid.
//
// Data in: profiles. Data out: [Table], which prints itself as aligned text, Markdown or JSON. The package reads no
// files and refuses nothing; what is wrong with a profile is profiles.Profile.Validate's to say.
//
// Minimum kernel: none.
//
// Rejected: printing the fields of a profile as they are (a person asks "can it reach the network", and five fields
// answer that); colours in tables (they are pasted into reviews).
package profileview
