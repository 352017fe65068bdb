# SPDX-License-Identifier: Apache-2.0
# comments.sed: leaves comments in the sources of the page, but for the license in the first line.
1b
/^ *\/\*.*\*\/$/d
/^ *\/\*/,/\*\/$/d
