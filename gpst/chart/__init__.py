"""The pruned chart: its layout (integers), the inside and outside passes, decoding.

Names of sizes in the shapes, here and in gpst/model:

    N tokens          S sentences      C cells of the chart, tokens included
    I = C - N         E edges, each a split of a cell; 2E messages of the outside pass
    M = 2N - S        nodes of the trees, which are the actions of the generative model
    P pairs           R routes of gradients (1 or 2; route 0 is the sum of both)
    D width of the composition model       H width of the generative model
"""
